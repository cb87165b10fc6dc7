"""Files in an object store, or at a web address: all rows of all of them, when one of them changed."""
