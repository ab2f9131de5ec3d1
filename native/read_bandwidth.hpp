// How fast this machine streams memory: the bound on decoding, which reads every weight and every cached key and value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace headwise {

struct ReadBandwidth {
    std::uint64_t bytes_read = 0;  // by all threads together, in one repeat
    unsigned threads = 0;
    std::vector<double> seconds;  // one entry per repeat: from the common start to the end of the slowest thread
    std::uint64_t checksum = 0;   // of all words read in all repeats, modulo 2^64; see expected_checksum
};

// A buffer that no cache can serve, in bytes.
std::uint64_t default_buffer_bytes();

// Reads a buffer once per repeat, each thread its own part, and adds up the words. Throws std::invalid_argument where
// a number is 0 or the buffer is too small for the threads, std::bad_alloc where there isn't enough memory.
ReadBandwidth measure_read_bandwidth(unsigned threads, std::uint64_t buffer_bytes, unsigned repeats);

// What the checksum must be if every word was read once per repeat: word i of the buffer holds i.
std::uint64_t expected_checksum(std::uint64_t bytes_read, unsigned repeats);

}  // namespace headwise
