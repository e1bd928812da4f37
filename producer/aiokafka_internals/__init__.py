"""The parts of aiokafka that penstock replaces, and all that it uses of aiokafka beside its documented names.

Each file says what aiokafka lacks, and with what it could go. Nothing else imports such names or touches private ones
(tests/test_layout.py); tests/producer/aiokafka_internals/test_upstream.py holds aiokafka to what is relied on here.
"""
