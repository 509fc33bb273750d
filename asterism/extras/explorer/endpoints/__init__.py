"""The requests of the page, one file per part of it. An endpoint is a function of the explored images and a query."""
