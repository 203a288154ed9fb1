"""The report's page: HTML that is escaped by construction, figures as SVG, and one part for each kind of folder."""
