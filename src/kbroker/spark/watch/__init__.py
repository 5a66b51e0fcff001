"""`kbroker pipeline watch`: usage and throttles as a continuous query into a table, and a page that follows it."""
