-- SQL over tables of the tenant's own: the API finds them; only the catalog's role writes them.
CREATE POLICY read_own ON iceberg_catalog.iceberg_tables FOR SELECT TO pulse_api
    USING (starts_with(table_namespace, 'pulse_' || replace(app_tenant()::text, '-', '') || '.'));
