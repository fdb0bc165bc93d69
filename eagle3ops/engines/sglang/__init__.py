"""SGLang: how it is started, what it needs, and how its log reads."""
