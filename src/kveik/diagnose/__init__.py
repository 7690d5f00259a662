"""Why a fleet that runs is of no use: controlled probes, the way of one request, and prefixes that break."""
