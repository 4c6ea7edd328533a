//! DSSE envelopes (<https://github.com/secure-systems-lab/dsse>).
