"""Listeners to records: metrics and logs. Nothing here is known to the code that it watches."""
