"""What a start does: check what was found, finish the transaction that was cut, make anew what is derived."""
