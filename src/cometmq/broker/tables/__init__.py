"""A broker's tables (topics, groups, consumer offsets, clients and locks) and the files that store them."""
