"""Small programs that show OmniRelay at work; the tests run them."""
