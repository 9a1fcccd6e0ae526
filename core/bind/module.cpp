#include "bind/bind.hpp"

NB_MODULE(_core, m) {
  m.doc() = "Slipstream's native core: batched worlds and the kernels learners share.";
  // Torch's graph may hold on to a network's shape until the process ends; that is no leak of ours.
  nb::set_leak_warnings(false);
  slipstream::bind_vec_env(m);
  slipstream::bind_kernels(m);
  slipstream::bind_mlp(m);
  slipstream::bind_recurrent(m);
  slipstream::bind_conv(m);
  slipstream::bind_surrogate(m);
  slipstream::bind_vtrace(m);
  slipstream::bind_replay(m);
  slipstream::bind_probe(m);
  slipstream::bind_airspace(m);
  slipstream::bind_horizontal_cr(m);
  slipstream::bind_racing(m);
  slipstream::bind_drmario(m);
}
