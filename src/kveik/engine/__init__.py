"""One engine seen from outside: its HTTP interface, its metrics, its process group."""
