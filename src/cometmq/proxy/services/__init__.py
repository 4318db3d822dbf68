"""The methods of ``MessagingService``, a module for each family."""
