"""SciDocs' recommendations: a small network learns from clicks which of the shown papers is opened next."""
