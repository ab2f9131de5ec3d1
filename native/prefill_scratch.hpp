// The memory of one thread that computes pieces.
#pragma once

#include "prefill_scores.hpp"
#include "statistics_panel.hpp"

namespace headwise::HEADWISE_ISA {

template <class Mode>
struct Scratch {
    using Element = typename Mode::Element;
    std::int64_t width, columns;  // of packed queries and keys, of packed values
    Panel* panels = nullptr;
    Tile<Mode> tile;
    float *scores = nullptr, *outputs = nullptr, *row = nullptr;
    Element* queries = nullptr;
    Added added;
    Reduced* reduced = nullptr;    // [panel], where statistics are asked for
    std::uint8_t* sees = nullptr;  // [unfinite key, lane]: whether the lane sees the key
    std::size_t bytes = 0;

    Scratch(const Call& call, std::byte* memory)
        : width(round_up(call.width, Mode::depth)), columns(round_up(call.value_width, strip)) {
        const bool adds = call.mask.data != nullptr || call.bias.data != nullptr;
        tile.width = width;
        tile.columns = columns;
        take(memory, most_panels, panels);
        take(memory, tile_keys * width, tile.keys);
        take(memory, tile_keys * columns, tile.values);
        take(memory, Mode::depth * columns, tile.row);
        take(memory, tile_keys * most_rows, scores);
        take(memory, adds ? tile_keys * most_rows : 0, added.data);
        take(memory, round_up(larger(width, columns), lanes), row);
        take(memory, tile_keys * most_rows, sees);
        take(memory, most_panels * width * most_rows, queries);
        take(memory, most_panels * columns * most_rows, outputs);
        if (call.statistics != nullptr) take_reduced(memory, relation_count(call));
    }

    float* output(std::int64_t panel) const { return outputs + panel * columns * most_rows; }
    Element* query(std::int64_t panel) const { return queries + panel * width * most_rows; }

private:
    void take_reduced(std::byte* memory, std::int64_t relations) {
        take(memory, most_panels, reduced);
        for (std::int64_t panel = 0; panel < most_panels; ++panel) {
            Reduced unused, &of_panel = memory == nullptr ? unused : reduced[panel];
            take(memory, relations * most_rows, of_panel.sums);
            take(memory, relations * most_rows, of_panel.lost);
            take(memory, relations * most_rows, of_panel.numbers);
            take(memory, relations * most_rows, of_panel.keys);
        }
    }

    template <class T>
    void take(std::byte* memory, std::int64_t count, T*& part) {
        if (memory != nullptr) part = reinterpret_cast<T*>(memory + bytes);
        bytes += (static_cast<std::size_t>(count) * sizeof(T) + 63) / 64 * 64;
    }
};

}  // namespace headwise::HEADWISE_ISA
