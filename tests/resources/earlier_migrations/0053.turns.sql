-- A run of a pipe holds one of a few places: its tasks are told when it gives it to another tenant's run.
ALTER TABLE pipes ADD COLUMN gives_way boolean NOT NULL DEFAULT false;
