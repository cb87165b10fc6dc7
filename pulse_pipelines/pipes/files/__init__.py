"""Files in an object store, or at a web address: a run reads all rows of all files if one of them changed."""
