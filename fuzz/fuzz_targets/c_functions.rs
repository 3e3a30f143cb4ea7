#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| harness::c_functions::run(bytes));
