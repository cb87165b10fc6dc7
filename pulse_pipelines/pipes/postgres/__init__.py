"""Tables of another Postgres: whole, by a cursor, or by the changes in the source's log."""
