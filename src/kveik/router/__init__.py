"""The one address that clients know: chooses an engine for each request and passes bytes through."""
