"""The methods of ``MessagingService``, with one module for each family."""
