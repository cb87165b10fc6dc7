-- How far each log has come is known to whoever tells how far sinks are behind, as are pipes and syncs.

CREATE POLICY look_at_all ON entity_logs FOR SELECT TO pulse_pipeline USING (true);
