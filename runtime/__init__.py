"""The only seams to the world (clock, storage, network) and the runtime that runs state machines over logs."""
