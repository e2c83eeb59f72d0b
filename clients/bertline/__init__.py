"""Client of a Bertline server."""
