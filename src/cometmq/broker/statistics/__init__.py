"""Statistics of a running broker (BrokerStatsManager)."""
