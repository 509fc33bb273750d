"""What the page asks for: one file per part of it. An endpoint is a plain function of the explored and a query."""
