"""One file for each revision of the schema, oldest first; parley/storage/migrations.py runs them."""
