"""The mask job: copies with fields dropped, masked, hashed or encrypted."""
