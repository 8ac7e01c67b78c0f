"""Definition texts of the methods: claim, assumptions, pseudo-code, and proof or reference."""

# SHA-256 of earlier texts, by method. Certificates that name one of them stay valid: the present
# text defines the same method for everything that the earlier one covers.
EARLIER_TEXTS: dict[str, frozenset[str]] = {
    # without categories, fractional weights and weights of classes
    "dare": frozenset({"7e96016160e40acb38f978f4d7322d054b58033778741484b03c2003cb4c8084"}),
    # without augmentation, held-out rows, accumulation and regressors
    "sisa-net": frozenset({"295aa1151cde742ff6b3791330e2e48b791b2c4609e7d88e1bf453aaf296aac6"}),
}
