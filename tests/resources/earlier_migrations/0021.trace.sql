-- One event is looked up by its id among the dead letters.

CREATE INDEX dead_letters_event ON dead_letters (tenant_id, event_id);
