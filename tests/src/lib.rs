//! What the tests share: seeded data, hashing and bitwise comparison.
