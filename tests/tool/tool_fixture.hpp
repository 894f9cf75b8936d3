// `normgrad` as a process, for tests of its commands.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

namespace normgrad::tool {

// A folder of its own for each test.
class Tool : public testing::Test {
 protected:
  Tool() {
    std::string name = (std::filesystem::temp_directory_path() / "normgrad_XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("no temporary folder");
    folder_ = name;
  }
  ~Tool() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  // The exit code of `environment normgrad arguments`; what it said is in `said`.
  int normgrad(const std::string& arguments, const std::string& environment = "") {
    const std::string log = path("log");
    const std::string command =
        environment + " " NORMGRAD_TOOL " " + arguments + " >" + log + " 2>&1";
    const int status = std::system(command.c_str());
    std::ifstream file(log);
    said = {std::istreambuf_iterator<char>(file), {}};
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  std::string said;

 private:
  std::filesystem::path folder_;
};

}  // namespace normgrad::tool
