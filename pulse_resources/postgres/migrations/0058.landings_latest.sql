-- When events of a dataset landed last, among all landings that it ever had: freshness of many datasets at once.
CREATE INDEX landings_latest ON landings (tenant_id, dataset_id, landed_at) WHERE rows > 0;
