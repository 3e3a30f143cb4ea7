#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| harness::fabric_mads::run(bytes));
