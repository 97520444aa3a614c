"""Object stores: URLs, credentials, requests with retries, errors of one line each. `obstore` is imported when one is opened."""
