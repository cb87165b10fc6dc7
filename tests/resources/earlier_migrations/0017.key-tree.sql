-- Keys form a tree: who issued a key, so that revoking that one takes this one along.

-- Null: an operator did (or nobody knows, as of keys that are older than this column).
ALTER TABLE api_keys ADD COLUMN issued_by text;
ALTER TABLE api_keys
    ADD FOREIGN KEY (tenant_id, issued_by) REFERENCES api_keys (tenant_id, key_id),
    ADD CHECK (issued_by <> key_id);
CREATE INDEX api_keys_issued_by ON api_keys (tenant_id, issued_by);
