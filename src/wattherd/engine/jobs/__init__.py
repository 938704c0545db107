"""Jobs as the core knows them: their life, their record, what they wait for."""
