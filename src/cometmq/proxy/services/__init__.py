"""The methods of ``MessagingService``, in one module per group of methods."""
