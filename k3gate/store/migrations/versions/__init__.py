"""One module for each change of the schema, oldest first. Revisions are numbers: "0001", "0002"."""
