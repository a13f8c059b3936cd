"""The journal on the command line: tail, show, export."""
