#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| harness::ring_records::run(bytes));
