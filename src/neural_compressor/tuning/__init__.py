"""The tuning loop: criteria, objectives, measurements and the journal that a killed run goes on from."""
