#!/usr/bin/env python3
"""Do the tests bite? Breaks the library in one place at a time and expects the suite to notice.

    tests/mutants.py            all mutants, in a copy of the tree under build/mutants
    tests/mutants.py NAME ...   only these
    tests/mutants.py --list     their names

Each mutant is (name, file, text, replacement); the text must occur in the file exactly once, so a
mutant that the code has outgrown is an error and not a silent survivor. The first failing test kills
a mutant; one that passes the whole suite survives, and is a missing test. Ends with the line
`N passed, M failed`, where a killed mutant has passed.
"""
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPY = ROOT / "build" / "mutants"

MUTANTS = [
    # The formula of the rows.
    ("rows_drop_mean_g", "src/cpu/row_scalars-inl.h",
     "const DoubleVec c1 = is_rms(statistics) ? hn::Zero(d) : first;",
     "const DoubleVec c1 = hn::Zero(d);"),
    ("rows_n_minus_1", "src/cpu/row_scalars-inl.h",
     "per_col = hn::Set(d, 1 / static_cast<double>(problem.cols));",
     "per_col = hn::Set(d, 1 / static_cast<double>(HWY_MAX(problem.cols - 1, 1)));"),
    ("rows_r_squared", "src/cpu/row_scalars-inl.h",
     "put(r, scalars.r);",
     "put(hn::Mul(r, r), scalars.r);"),
    ("rows_uncentred_sums", "src/cpu/row_sums-inl.h",
     "return kForm == RowForm::kCentred ? hn::Sub(x, mean_) : x;",
     "return x;"),
    ("rows_gamma_in_dbeta", "src/cpu/row_grads-inl.h",
     "dbeta = kRow == 0 ? dy : hn::Add(dbeta, dy);",
     "dbeta = kRow == 0 ? hn::Mul(dy, x_hat) : hn::Add(dbeta, dy);"),
    # The layers.
    ("layer_mean_in_one_float", "src/cpu/row_forward-inl.h",
     "hn::Sub(hn::Sub(h, mean_high_), mean_low_)", "hn::Sub(h, mean_high_)"),
    ("layer_residual_unrounded", "src/cpu/row_forward-inl.h",
     "return {as_stored<T>(hn::Add(x.a, residual.a)), as_stored<T>(hn::Add(x.b, residual.b))};",
     "return {hn::Add(x.a, residual.a), hn::Add(x.b, residual.b)};"),
    ("layer_last_segment_only", "src/cpu/rows_forward.cpp",
     "moments[k] += segment_moments(batch, k, i);", "moments[k] = segment_moments(batch, k, i);"),
    ("layer_reads_x_again", "src/cpu/row_forward-inl.h",
     "input_(batch.h[k] != nullptr ? batch.h[k] : batch.x[k], batch.residual[k])",
     "input_(batch.x[k], batch.residual[k])"),
    ("running_variance_biased", "src/cpu/forward_channel.hpp",
     "n < 2 ? variance : variance * (n / (n - 1))", "variance"),
    ("gamma_without_its_offset", "src/ops/operands.cpp",
     "gamma.offset = static_cast<float>(offset);", ""),
    ("sums_replace_what_is_there", "src/ops/rows.cpp",
     "problem.dbeta.accumulate = o.dbeta.updated;", ""),
    ("residuals_gradient_lost", "src/cpu/row_grads-inl.h",
     "return {hn::Add(dx.a, dh.a), hn::Add(dx.b, dh.b)};", "return {hn::Add(dx.a, dh.a), dx.b};"),
    ("y_over_gamma", "src/ops/plan.cpp",
     "{&Operands::y, &Operands::residual}", "{&Operands::y, &Operands::gamma}"),
    # Vectors, tails and addresses.
    ("rows_skip_last_lane", "src/cpu/row_grads-inl.h",
     "if (c < end) vector<true>(c, end - c, last_dx[vectors]);",
     "if (c < end) vector<true>(c, end - c - 1, last_dx[vectors]);"),
    ("rows_last_segment_only", "src/cpu/row_looks-inl.h",
     "sums += sum_segment(batch, k, i);",
     "sums = sum_segment(batch, k, i);"),
    ("rows_swapped_strides", "src/cpu/row_cursor.hpp",
     "dy += steps * problem.dy[axis];", "dy += steps * problem.x[axis];"),
    ("planes_skip_tail_of_dx", "src/cpu/plane_grads-inl.h",
     "store_tail(element(s, x_vec, dy_vec), dx + k, left);",
     "store_tail(element(s, x_vec, dy_vec), dx + k, left - 1);"),
    ("short_rows_lose_a_group", "src/cpu/row_grads-inl.h",
     "a.add(a_last);", "if (k > 0) a.add(a_last);"),
    ("shared_columns_lose_segments", "src/cpu/row_looks-inl.h",
     "sums += workspace_.segments[k * segments() + i];",
     "sums = workspace_.segments[k * segments() + i];"),
    ("stage_loses_its_end", "src/cpu/io-inl.h",
     "if (done < count) copy_into_line(from + done, to + done, 0, count - done);", ""),
    ("lines_begin_before_the_row", "src/cpu/whole_lines-inl.h",
     "hn::Not(first_lanes(shift_))", "first_lanes(kLanes)"),
    ("lines_lose_their_end", "src/cpu/whole_lines-inl.h",
     "if (lanes > kLanes) store_lanes(", "if (lanes > 2 * kLanes) store_lanes("),
    ("lines_alone_begin_before_the_row", "src/cpu/whole_lines-inl.h",
     "first_lanes(alone ? shift_ : 0)", "first_lanes(0)"),
    ("lines_forget_what_waits", "src/cpu/row_grads-inl.h",
     "waiting[k] = waiting_[k];", "(void)waiting_;"),
    ("bf16_pairs_in_order", "src/cpu/io-inl.h",
     "return i - in_pair + in_pair % 2 * lanes() + in_pair / 2;", "return i;"),
    ("even_chunks_lost", "src/cpu/column_tree-inl.h",
     "static_cast<double>(even[c]) + static_cast<double>(odd[c])", "static_cast<double>(odd[c])"),
    ("last_chunk_lost", "src/cpu/row_looks-inl.h",
     "add_last_chunk(tree, block, even, from, to);", ""),
    ("chunks_keep_old_sums", "src/cpu/row_grads-inl.h",
     "first ? 0 : static_cast<size_t>(lanes())", "static_cast<size_t>(lanes())"),
    ("one_column_in_float32", "src/cpu/row_looks-inl.h",
     "return problem_.cols == 1 && !is_rms(problem_.statistics);", "return false;"),
    ("rest_rows_without_dx", "src/cpu/row_grads-inl.h",
     "} else if (kDx && (kWhole || dx_[kRow] != nullptr)) {\n        store_pair(",
     "} else if (kDx && kWhole) {\n        store_pair("),
    ("sums_never_exact", "src/cpu/row_looks-inl.h",
     "(dx_ && !is_safe(mean(m.g_x[k])))", "false"),
    # Rounding.
    ("bf16_truncates", "src/cpu/io-inl.h",
     "hn::Add(bits, hn::Add(odd, hn::Set(di, 0x7FFF)))", "hn::Add(bits, hn::Xor(odd, odd))"),
    ("bf16_ties_away", "src/cpu/io-inl.h",
     "hn::Add(odd, hn::Set(di, 0x7FFF))",
     "hn::Add(hn::Xor(odd, odd), hn::Set(di, 0x8000))"),
    ("f16_overflows_early", "src/ops/float16.hpp", "magnitude >= 0x477FF000", "magnitude >= 0x477FE000"),
    # Summation order and precision.
    ("running_fp32_sum", "src/cpu/column_tree.hpp",
     "constexpr int64_t kChunkRows = 32;", "constexpr int64_t kChunkRows = 1 << 20;"),
    ("tree_forgets_odd_chunks", "src/cpu/column_tree-inl.h",
     "if ((chunks >> k & 1) != 0) add_left", "if ((chunks >> k & 1) == 2) add_left"),
    ("tree_drops_last_block", "src/cpu/column_tree-inl.h",
     "block + step < tree.blocks; block", "block + step < tree.blocks - 1; block"),
    ("tree_ignores_alignment", "src/cpu/column_tree.hpp",
     "return kChunkRows << (levels - 1);", "return (kChunkRows << (levels - 1)) + levels - 1;"),
    # Hard values.
    ("zero_denominator_divides", "src/cpu/normalizer.hpp",
     "const double r = std == 0 ? 0 : 1 / std;", "const double r = 1 / std;"),
    ("everything_fits_float32", "src/cpu/normalizer.hpp",
     "return magnitude >= kLeastSafe && magnitude <= kMostSafe;",
     "return magnitude >= 0;"),
    ("nan_spreads_over_columns", "src/cpu/row_looks-inl.h",
     "batch.wide_params[k] = n.zero ? !kFromX : !is_safe(n.scale);",
     "batch.wide_params[k] = true;"),
    ("float_environment_leaks_in", "src/cpu/parallel.hpp", "fesetenv(FE_DFL_ENV);", ""),
    # BatchNorm.
    ("channels_m_minus_1", "src/cpu/channel_scalars-inl.h",
     "hn::LoadU(d, totals.dy + k), hn::Set(d, elements)",
     "hn::LoadU(d, totals.dy + k), hn::Set(d, elements - 1)"),
    ("channels_zero_denominator_divides", "src/cpu/channel_scalars-inl.h",
     "hn::Eq(std, hn::Zero(d))", "hn::Ne(std, std)"),
    ("channels_always_fine", "src/cpu/channel_scalars-inl.h",
     "fine = fine && hn::AllTrue(", "fine = fine || hn::AllTrue("),
    ("steps_ignore_other_processes", "src/cpu/channel.hpp",
     "if (problem.step != ChannelsStep::kElementwise) {", "if (problem.channels > 0) {"),
    ("steps_first_count_only", "src/cpu/channel.hpp",
     "for (int64_t i = 0; i < problem.counts; ++i)", "for (int64_t i = 0; i < 1; ++i)"),
    ("steps_sums_of_x_hat", "src/cpu/channel.hpp",
     "store_step_value(problem.sum_dy_xmu, buffers.sum_dy_xmu, c, sums.dy_xmu);",
     "store_step_value(problem.sum_dy_xmu, buffers.sum_dy_xmu, c, sums.dy_x_hat);"),
    ("steps_first_part_only", "src/cpu/channel.hpp",
     "for (int64_t part = 0; part < problem.parts; ++part)",
     "for (int64_t part = 0; part < 1; ++part)"),
    ("steps_empty_parts_count", "src/cpu/forward_channel.hpp",
     "part.count != 0 && c < end", "c < end"),
    ("steps_means_unweighted", "src/cpu/forward_channel.hpp",
     "totals_[c - begin] += part;", "part.count = 1, totals_[c - begin] += part;"),
    ("steps_moments_in_one_float", "src/cpu/forward_channel.hpp",
     "store_step_value(problem.mean, buffers.saved_mean, c, moments.mean);",
     "store_step_value(problem.mean, buffers.saved_mean, c, static_cast<float>(moments.mean));"),
    ("steps_count_of_samples", "src/cpu/dtype.hpp",
     "*static_cast<int64_t*>(data) = shape.samples * shape.length;",
     "*static_cast<int64_t*>(data) = shape.samples;"),
    ("steps_counts_of_32_bits", "src/cpu/dtype.hpp",
     "static_cast<double>(static_cast<const int64_t*>(data)[index])",
     "static_cast<double>(static_cast<const int32_t*>(data)[2 * index])"),
    ("steps_parts_of_another_stride", "src/ops/operands.cpp",
     "operand.view.strides[1]}, operand.view.strides[0]}", "operand.view.strides[1]}, size}"),
    ("steps_empty_process_moves_nothing", "src/ops/channels.cpp",
     "(!nothing || problem.step == ChannelsStep::kElementwise)", "!nothing"),
    ("channels_frozen_ignored", "src/cpu/planes.cpp",
     "plane_grads<T, true, false>(stretch);", "plane_grads<T, false, false>(stretch);"),
    ("channels_frozen_reads_x", "src/cpu/channel_scalars-inl.h",
     "channel.wide = channel.wide || !problem.frozen;", "channel.wide = true;"),
    ("channels_eps_dropped", "src/cpu/channel_scalars-inl.h",
     "hn::Add(r, hn::Set(d, problem.eps))", "r"),
    ("channels_last_wide_neighbours", "src/cpu/channels_last.cpp",
     "if (!channel.wide) continue;", "if (channel.wide) continue;"),
    ("channels_last_scale_of_1", "src/cpu/channels_last.cpp",
     "return std::abs(power) > 100 ? 1 :", "return std::abs(power) > 0 ? 1 :"),
    ("channels_last_fold_not_added_up", "src/cpu/channels_last.cpp",
     "totals.dy[k] += w_.tree.result(0)[w_.padded + at];",
     "totals.dy[k] = w_.tree.result(0)[w_.padded + at];"),
    ("channels_last_fold_over_gaps", "src/cpu/channels_last_workspace.hpp",
     "if (fold > 1 && !dense) return 0;", "if (fold > 1 && !dense && rows < 1) return 0;"),
    ("channels_last_stage_over_gaps", "src/cpu/channels_last.cpp",
     "const bool gapless = rows.dx_stride == width;", "const bool gapless = rows.dx_stride >= width;"),
    ("channels_last_streams_between_lines", "src/cpu/channels_last.cpp",
     "std::gcd(w_.fold, layout_.dx.length)", "std::lcm(w_.fold, layout_.dx.length)"),
    ("planes_border_shifted", "src/cpu/plane_grads-inl.h",
     "blend(s, next, (mine + 1) / 2)", "blend(s, next, mine / 2)"),
    ("channels_strides_ignored", "src/ops/problem.hpp",
     "return x.*stride == 1 && dy.*stride == 1 && (!has_dx || dx.*stride == 1);",
     "return channels <= 1 || (x.*stride == 1 && dy.*stride == 1 && (!has_dx || dx.*stride == 1));"),
    # Layouts.
    ("rms_rstd_ignored", "src/cpu/row_scalars-inl.h",
     "DoubleVec r = spread;",
     "DoubleVec r = one;"),
    ("reshape_merges_over_gaps", "src/ops/layout.cpp",
     "runs[count - 1].stride) * runs[count - 1].extent ==", "runs[count - 1].stride) * runs[count - 1].extent <="),
    ("copies_come_back_unrounded", "src/cpu/copy.cpp",
     "return narrow<To>(widen(value));", "return narrow<To>(widen(value) * (1 + 0x1p-9));"),
    ("copies_skip_the_last_row", "src/cpu/copy.cpp",
     "std::min(tile.across_begin + across.tile, across.extent);",
     "std::min(tile.across_begin + across.tile, across.extent - (across.extent > 64));"),
    ("outputs_stay_in_the_workspace", "src/ops/staging.cpp",
     "NORMGRAD_RETURN_IF_ERROR(copy(stage.back, inside, outside, stream));", "(void)outside, (void)inside;"),
    ("dx_rounded_twice", "src/ops/operands.cpp",
     "operands.dx.tensor.dtype != x ? DType::kF32 : x;", "operands.dx.tensor.dtype != x ? x : x;"),
    # The CUDA kernels, on the emulated GPU.
    ("cuda_rows_wait_for_nothing", "src/cuda/rows_ring.cuh",
     "wait(&full_[stage.index()], stage.turn % 2);", "(void)stage;"),
    ("cuda_rows_refill_too_early", "src/cuda/rows_kernel.cuh",
     "sums = team_.sum(sums);\n    if (last) refill(first, stage);",
     "if (last) refill(first, stage);\n    sums = team_.sum(sums);"),
    ("cuda_rows_dh_of_the_first_block", "src/cuda/rows_kernel.cuh",
     "row_offset<kPlain>(launch_, kRowDh, row) +\n           columns_.first;",
     "row_offset<kPlain>(launch_, kRowDh, row);"),
    ("cuda_rows_dh_lost_in_float64", "src/cuda/rows_wide.cuh",
     "dh == nullptr ? dx : dx + widen(dh[c])", "dx"),
    ("cuda_rows_statistics_of_the_neighbour", "src/cuda/rows_scalars.cuh",
     "__float_as_uint(value) >> (is_second(number) ? 16 : 0);", "__float_as_uint(value);"),
    ("cuda_small_rows_statistics_as_floats", "src/cuda/rows_small_launch.cuh",
     "return launch.spread_is_float ? DType::kF32 : dtype_of<T>();", "return DType::kF32;"),
    ("cuda_rows_one_turn_of_sums", "src/cuda/rows_team.cuh",
     "&shared.sums[sums % 2][crew * slots_];", "&shared.sums[0][crew * slots_];"),
    ("cuda_rows_lose_half_of_the_warps", "src/cuda/rows_team.cuh",
     "for (int i = 4; i < count; i += 4)", "for (int i = 4; i < count - 4; i += 4)"),
    ("cuda_rows_x_hat_unscaled", "src/cuda/rows_scalars.cuh",
     "make_scales(0, quick_reciprocal(stats.spread), 1,", "make_scales(0, 1, 1,"),
    ("cuda_rows_x_hat_scaled_twice", "src/cuda/rows_kernel.cuh",
     "kForm == RowForm::kXHat ? dy[e] : dy[e] * scalars.r;", "dy[e] * scalars.r;"),
    ("cuda_rows_of_the_neighbouring_crew", "src/cuda/rows_geometry.cpp",
     "neighbours ? g.stage_rows() : g.parts;", "neighbours ? g.stage_rows() : 1;"),
    ("cuda_rows_one_stage_to_a_batch", "src/cuda/rows_ring.cuh",
     "(i >> launch_.stage_bits) * launch_.row_stride", "0 * launch_.row_stride"),
    ("cuda_ahead_sums_of_the_row_before", "src/cuda/rows_team.cuh",
     "return add_up(travel.blocks[n % 4], cluster);", "return add_up(travel.blocks[(n + 3) % 4], cluster);"),
    ("cuda_ahead_waits_once", "src/cuda/rows_team.cuh",
     "wait(&travel.arrived[n % 4], n / 4 % 2);", "wait(&travel.arrived[n % 4], 0);"),
    ("cuda_ahead_described_too_early", "src/cuda/rows_kernel.cuh",
     "(stage.scales - 2) & (2 * launch_.geometry.batch - 1);", "(stage.scales - 1) & (2 * launch_.geometry.batch - 1);"),
    ("cuda_ahead_loses_the_last_row", "src/cuda/rows_kernel.cuh",
     "if (!more) break;\n      held = next;", "if (first + launch_.row_stride >= problem_.rows) break;\n      held = next;"),
    ("cuda_rows_count_what_is_not_there", "src/cuda/rows_kernel.cuh",
     "if (kRms && unit(j) * kE >= columns_.count) unit_sums.x = 0;", ""),
    ("cuda_rows_of_any_r_in_float32", "src/cuda/rows_scalars.cuh",
     "return is_near_1<26>(r) && is_safe(g_x)", "return is_safe(g_x)"),
    ("cuda_rows_wrong_phase", "src/cuda/rows_units.cuh",
     "return from(low.z, low.w, high.x, high.y, high.z);",
     "return from(low.y, low.z, low.w, high.x, high.y);"),
    ("cuda_rows_all_of_one_phase", "src/cuda/rows.cu",
     "return launch.row_stride * bytes % 16 == 0 && std::abs(bytes) >= 16;", "return true;"),
    ("cuda_rows_no_room_for_lines", "src/cuda/rows_geometry.cpp",
     "divide_up(pieces + 112, 128) * 128", "divide_up(pieces - 32, 128) * 128"),
    ("cuda_rows_a_warp_ends_where_it_begins", "src/cuda/rows_units.cuh",
     "(i * kPerWord < kOver ? 32 * 16 : 0)", "0"),
    ("cuda_rows_leave_out_the_last_units", "src/cuda/rows_kernel.cuh",
     "return (j * team_.warps + team_.role) * 32 * kE >= columns_.count;",
     "return (j * team_.warps + team_.role + 1) * 32 * kE > columns_.count;"),
    ("cuda_rows_keep_chunks", "src/cuda/rows_columns.cuh",
     "*chunk(i) += dgamma_[i];\n      dgamma_[i] = 0;", "*chunk(i) += dgamma_[i];"),
    ("cuda_rows_lose_a_crew", "src/cuda/rows_columns.cuh",
     "four[n] = first + n < crews ?", "four[n] = first + n + 1 < crews ?"),
    ("cuda_rows_lose_a_team", "src/cuda/rows_columns.cuh",
     "for (int i = 0; i < 32; i += lanes)", "for (int i = lanes; i < 32; i += lanes)"),
    ("cuda_rows_described_too_early", "src/cuda/rows_ring.cuh",
     "send(row_of(first, rows + 2 * batch + lane_));", "send(row_of(first, rows + batch + lane_));"),
    ("cuda_across_waits_for_nothing", "src/cuda/rows_across_worker.cuh",
     "if (kPlain) wait(&board_.full[group_][at.slot], at.parity);", ""),
    ("cuda_across_a_block_is_not_asked", "src/cuda/rows_across_exchange.cuh",
     "if (lane + 32 * i < blocks) part.add(part_of(words[i]));",
     "if (lane + 32 * i + 1 < blocks) part.add(part_of(words[i]));"),
    ("cuda_across_any_tag", "src/cuda/rows_across_exchange.cuh",
     "return words.first % 2 == tag && words.second % 2 == tag;", "return words.first != ~0ull;"),
    ("cuda_across_deep_sums_start_anew", "src/cuda/rows_across_worker.cuh",
     "(turns == kDeepTurns ? 0 : *folded(i)) + chunks;", "chunks;"),
    ("cuda_across_all_in_float32", "src/cuda/rows_across_carrier.cuh",
     "wide = !is_served<kRms>(launch_.rows, s, sums) && (total.gradient || !zero);", "wide = false;"),
    ("cuda_small_columns_lose_a_step", "src/cuda/rows_small_columns.cuh",
     "         first += kStep << launch_.part_bits) {\n      add_rows", "         first += 1 << 30) {\n      add_rows"),
    ("cuda_small_columns_lose_a_part", "src/cuda/rows_small_columns.cuh",
     "for (int part = 0; part < 1 << launch_.part_bits; ++part) sum", "for (int part = 1; part < 1 << launch_.part_bits; ++part) sum"),
    ("cuda_small_columns_any_scale", "src/cuda/rows_small_columns.cuh",
     "const float scale = served ? r * kUp : NAN;", "const float scale = r * kUp;"),
    ("cuda_small_columns_all_in_float32", "src/cuda/rows_small_columns.cuh",
     "if (__builtin_expect(!(sum - sum == 0), 0)) sum = wide_sum(launch_, rest_, part_, column);", ""),
    ("cuda_small_columns_vanish", "src/cuda/rows_small_columns.cuh",
     "kUp = 0x1p48f;", "kUp = 1;"),
    ("cuda_small_rows_all_in_float32", "src/cuda/rows_small_rows.cuh",
     "return write_with_care<T, kRms>(launch_, rest_, team_, row_, there_, fine, scalars, sums);", ""),
    ("cuda_only_row_all_in_float32", "src/cuda/rows_small_only.cuh",
     "return write_with_care<T, kRms>(launch_, rest_, team_, 0, true, fine, scalars, sums);", ""),
    ("cuda_only_row_loses_its_second_half", "src/cuda/rows_small_only.cuh",
     "if (halves_ == 1) return first;", "return first;"),
    ("cuda_only_row_counts_what_is_not_there", "src/cuda/rows_small_only.cuh",
     "kRms ? (in_[j] ? tree_sum(x_[j], x_[j]) : 0) : tree_sum(g);",
     "kRms ? tree_sum(x_[j], x_[j]) : tree_sum(g);"),
    ("cuda_small_squares_overflow", "src/cuda/rows_small_rows.cuh",
     "if (!served) mean = wide;", ""),
    ("cuda_small_only_row_without_care", "src/cuda/rows_small_rows.cuh",
     "wide ? dy * exact.normalizer.x_hat(x)", "wide ? dy * scalars.scale * (x - scalars.mean)"),
    ("cuda_parts_lost", "src/cuda/finish.cu",
     "part < problem.parts; part += groups", "part + 1 < problem.parts; part += groups"),
    ("cuda_channels_without_their_second_border", "src/cuda/channels_cluster.cu",
     "left_[threadIdx.x + 1].add(sums[1]);", "left_[threadIdx.x].add(sums[1]);"),
    ("cuda_channels_lose_half_of_a_unit", "src/cuda/channels_cluster.cu",
     "const bool whole = tile_.group == 1 || span_.split == kUnit<T>;",
     "const bool whole = span_.split == kUnit<T>;"),
    ("cuda_channels_all_borders_midway", "src/cuda/channels_cluster.cu",
     "const bool midway = tile.group == 1 || problem.length % (kUnit<T> / 2) == 0;",
     "const bool midway = true;"),
    ("cuda_channels_zeros_behind_the_end", "src/cuda/channels_cluster.cu",
     "x_slots_[k * cells_] = dy_slots_[k * cells_] = {};", ""),
    ("cuda_channels_write_behind_the_end", "src/cuda/channels_cluster.cu",
     "if (!is_absent(run)) *reinterpret_cast", "*reinterpret_cast"),
    ("cuda_floats_by_halves", "src/cuda/types.cuh", "if (whole) high = at[1];", ""),
    ("cuda_few_channels_stay_in_a_sample", "src/cuda/channels_small.cu",
     "if (wraps) at -= cut.units;", ""),
    ("cuda_few_channels_keep_their_own_sums", "src/cuda/channels_small.cu",
     "total = receive_sums(places, cut.parts);", ""),
    ("cuda_few_channels_lose_their_second_half", "src/cuda/channels_small.cu",
     "first < kUnits; first += kFew", "first < kFew; first += kFew"),
    ("cuda_few_channels_wide_left_out", "src/cuda/channels_small.cu",
     "} else if (rank == 0) {", "} else if (rank < 0) {"),
    ("cuda_gain_overflows", "src/cuda/channel.cuh",
     "channel.wide || !safe || !fits(c1) || !fits(c2);", "channel.wide || !safe;"),
    ("cuda_gain_overflows_at_once", "src/cuda/channel.cuh",
     "factors.wide || !served || !fits(c1) || !fits(c2)", "factors.wide || !served"),
    ("cuda_sums_vanish", "src/cuda/channel.cuh",
     "factors.wide || !served || !fits(c1) || !fits(c2)", "factors.wide || !fits(c1) || !fits(c2)"),
    ("cuda_team_holds_the_chunk_of_another_channel", "src/cuda/channels_team_worker.cuh",
     "take({round, 0}, deal.first_room);", "take({round, 0}, deal.first_room + 1);"),
    ("cuda_team_cluster_keeps_its_own_sums", "src/cuda/channels_team.cu",
     "return warp_sum(lane < blocks ? inbox[lane] : Sums{});",
     "return warp_sum(lane == part.rank() ? inbox[lane] : Sums{});"),
    ("cuda_team_reads_its_slots_out_of_turn", "src/cuda/channels_team_worker.cuh",
     "phases ^= 1u << slot;", "phases ^= 1u;"),
    ("cuda_rows_read_again_are_not_added", "src/cuda/channels_resident.cu",
     "for (int k = kept; k < steps; k += kAdded)", "for (int k = steps; k < steps; k += kAdded)"),
    ("cuda_resident_wide_left_out", "src/cuda/channels_resident.cu",
     "if (columns[i].wide) wide_channel", "if (columns[i].wide < 0) wide_channel"),
    ("cuda_resident_lines_lost", "src/cuda/channels_resident.cu",
     "board[(share + i * shares) * across + place]", "board[(share + i * (shares - 1)) * across + place]"),
    # Dialects.
    ("aclnn_compares_the_last_entry_only", "dialects/acl/ops/check.cpp",
     "if (!std::equal(normalized.begin(), normalized.end(), shape.end() - normalized.size())) {",
     "if (normalized.back() != shape.back()) {"),
    ("aclnn_offset_ignored", "dialects/acl/base/executor.cpp",
     "static_cast<char*>(tensor->data) + operand.offset : nullptr;",
     "static_cast<char*>(tensor->data) + 0 : nullptr;"),
    ("aclnn_executor_survives_its_run", "dialects/acl/base/executor.cpp",
     "if (missing || !executor->repeatable) {", "if (missing) {"),
    ("aclnn_mask_shifted", "dialects/acl/ops/layer_norm_backward.cpp",
     "return mask->values[output] ? outputs[output] : nullptr;",
     "return mask->values[(output + 1) % 3] ? outputs[output] : nullptr;"),
    ("aclnn_copies_beyond_dest_max", "dialects/acl/runtime/memory.cpp",
     "if (count <= room) return ACL_SUCCESS;", "if (count <= room + 1) return ACL_SUCCESS;"),
    ("aclnn_sum_is_one_term", "dialects/acl/base/executor.cpp", "  buffers.x = h;\n", ""),
    ("aclnn_sum_over_a_tensor", "dialects/acl/base/executor.cpp",
     "if (overlaps(*operand, data, begin, end)) {", "if (overlaps(*operand, data, begin, begin)) {"),
    ("infini_layer_norm_leaves_the_variance", "dialects/infini/layer_norm.cpp",
     ".statistics = normgrad::Statistics::kXHatStd,", ".statistics = normgrad::Statistics::kMeanVariance,"),
    ("infini_sum_is_lost", "dialects/infini/add_rms_norm.cpp",
     ".y = y, .h = residual_out}", ".y = residual_out, .h = y}"),
    ("infini_batch_norm_keeps_its_momentum", "dialects/infini/batch_norm.cpp",
     "if (momentum) call.momentum = *momentum;", ""),
    ("infini_refused_device_is_the_cpu", "dialects/infini/runtime.cpp",
     "current = {device, device_id, nullptr};", "current = {device, device_id, &kCpuRuntime};"),
    ("acl_event_is_always_complete", "dialects/acl/runtime/event.cpp",
     "return event.recorded ? event.device.query_event(event.own, complete) : Status();",
     "return event.device.query_event(event.own, complete);"),
    ("graph_one_epsilon_for_all", "dialects/ge/kinds/layer_norm_grad.cpp",
     "== ::ge::DT_FLOAT ? 1e-12 : 1e-5;", "== ::ge::DT_FLOAT ? 1e-12 : 1e-12;"),
    ("graph_computes_unused_outputs", "dialects/ge/kinds/layer_norm_grad.cpp",
     "mask[i] = mask[i] && invocation.used[i];", "mask[i] = mask[i] && invocation.used.size() > 0;"),
    ("graph_frees_buffers_too_early", "dialects/ge/runner/compile.cpp",
     "if (translations_[step].inputs[i]) value(inputs[i].from).last = step;",
     "if (translations_[step].inputs[i]) value(inputs[i].from).last = 0;"),
    ("graph_runs_what_nobody_reads", "dialects/ge/runner/compile.cpp",
     "if (!translation.inputs[i]) continue;\n      Value& input",
     "if (i == 99) continue;\n      Value& input"),
    # Checks and threads.
    ("any_overlap_is_in_place", "src/ops/plan.cpp",
     "a.data == b.data &&", "(a.data == b.data || a.data != nullptr) &&"),
    ("fork_is_forgotten", "src/cpu/parallel.cpp",
     "[] { g_single_threaded.store(true); }", "[] { g_single_threaded.store(false); }"),
    ("team_follows_the_tasks", "src/cpu/parallel.cpp",
     "#pragma omp parallel\n", "#pragma omp parallel num_threads(tasks < 4 ? 2 : 16)\n"),
]


def run(*command):
    environment = {**os.environ, "GTEST_FAIL_FAST": "1"}  # one failure is enough
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=environment)


def copy_tree():
    """The working tree as git sees it; files that did not change are not built again."""
    files = run("git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard").stdout.split()
    for name in files:
        source, target = ROOT / name, COPY / "tree" / name
        if source.is_file() and not (target.is_file() and target.read_bytes() == source.read_bytes()):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)  # with a new time, so that it is built again


def suite():
    """None if every test passes, else what failed first."""
    build = COPY / "build"
    for command in (
        ("cmake", "-S", str(COPY / "tree"), "-B", str(build), "-G", "Ninja",
         "-DCMAKE_BUILD_TYPE=Release"),
        ("cmake", "--build", str(build)),
    ):
        result = run(*command)
        if result.returncode != 0:
            sys.exit(f"the mutated tree does not build:\n{result.stdout[-4000:]}")
    result = run("ctest", "--test-dir", str(build), "--stop-on-failure", "--timeout", "300",
                 "-E", "^(install|symbols|instruction|bench|big_index|check_long)")
    if result.returncode == 0:
        return None
    failures = (line.strip() for line in result.stdout.splitlines()
                if "***" in line and "***Skipped" not in line)
    return next(failures, "a test failed")


def main():
    if "--help" in sys.argv:
        print(__doc__)
        return
    if "--list" in sys.argv:
        print("\n".join(name for name, *_ in MUTANTS))
        return
    wanted = sys.argv[1:]
    copy_tree()
    failure = suite()
    if failure:
        sys.exit(f"the tests fail without any mutant: {failure}")
    killed = survived = 0
    for name, file, text, replacement in MUTANTS:
        if wanted and name not in wanted:
            continue
        path = COPY / "tree" / file
        original = path.read_text()
        if original.count(text) != 1:
            sys.exit(f"{name}: expected the text once in {file}, found it {original.count(text)} times")
        path.write_text(original.replace(text, replacement))
        try:
            failure = suite()
        finally:
            path.write_text(original)
        killed += failure is not None
        survived += failure is None
        print(f"{name}: {'killed by ' + failure if failure else 'SURVIVED'}", flush=True)
    print(f"{killed} passed, {survived} failed")
    sys.exit(survived > 0)


if __name__ == "__main__":
    main()
