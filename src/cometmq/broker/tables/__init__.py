"""Tables of a broker: topics, groups, consumer offsets, clients, locks, and the files that store them."""
