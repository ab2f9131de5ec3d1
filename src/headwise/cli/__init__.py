"""The command line: `headwise study`, `report`, `doctor`."""
