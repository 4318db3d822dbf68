"""The engines that keep a set's document: etcd, Kubernetes, and one in memory for tests."""
