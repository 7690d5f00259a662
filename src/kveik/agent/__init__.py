"""The node's store process, its client and the socket protocol between them."""
