// The peers of a run, each with a case at a time: the files they read, and whether their gradients
// are right enough to be timed.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "bench/measure.hpp"
#include "bench/peers.hpp"
#include "bench/shapes.hpp"
#include "bench/trial.hpp"

namespace normgrad::tool {

class Rivals {
 public:
  explicit Rivals(const std::vector<std::string>& names) : names_(names) {}

  // Starts them anew, since a library learns its number of threads when it starts. Throws
  // std::runtime_error if one is not there.
  void start(int threads);

  std::map<std::string, std::string> versions() const;

  // Gives the data of a case to those that can do it. One whose dx is off by more than 2 % of its
  // norm is set up wrongly and does not compete.
  std::vector<Contestant> enter(const BenchCase& description, const Trial& trial);
  void leave();

  // Why peers did not compete: a sentence, and for how many cases.
  const std::map<std::string, int>& absences() const { return absences_; }

 private:
  std::vector<std::string> names_;
  std::vector<Peer> peers_;
  std::vector<Peer*> competing_;
  std::map<std::string, int> absences_;
};

}  // namespace normgrad::tool
