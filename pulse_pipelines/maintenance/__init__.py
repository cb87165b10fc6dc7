"""Table maintenance: compaction, snapshot expiry, orphan files and retention."""
