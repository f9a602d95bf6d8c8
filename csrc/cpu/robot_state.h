// What follows from the states of many robots: a dozen numbers each, where torch would make a pass over all for each.
//
// Rows of the inputs are `stride` apart, as columns of a simulator's arrays are; outputs are contiguous.
#pragma once

#include <cmath>
#include <cstdint>

#include "height_maps.h"

namespace p3::robot_state {

using height_maps::Maps;
using threaded::Address;
using threaded::at;

constexpr int64_t kRobots = 256;  // below which another thread costs more than it saves

// Of orientations quat [K, 4] (w, x, y, z; body to world) and velocities [K, 3] of the world: angles [5, K], which are
// the heading, its cosine and sine, the squared sine of the tilt, and exp(-10 tilt); gravity [K, 3] and the velocity
// [K, 3] in the body's frame, and its horizontal part [K, 2] in that of the heading.
inline void orientation(Address quat, int64_t quat_stride, Address velocity, int64_t velocity_stride, Address angles,
                        Address gravity, Address body, Address planar, int64_t robots, int threads) {
  parallel_for(robots, kRobots, threads, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const float* q = at<float>(quat, k * quat_stride);
      const float* v = at<float>(velocity, k * velocity_stride);
      const float w = q[0], x = q[1], y = q[2], z = q[3];
      const float yaw = std::atan2(w * z + x * y, 0.5f - (y * y + z * z));
      const float c = std::cos(yaw), s = std::sin(yaw);
      float* down = at<float>(gravity, 3 * k);
      down[0] = 2.0f * (w * y - x * z);
      down[1] = -2.0f * (w * x + y * z);
      down[2] = 2.0f * (x * x + y * y) - 1.0f;
      const float tilt = down[0] * down[0] + down[1] * down[1];
      float* angle = at<float>(angles, k);
      angle[0] = yaw;
      angle[robots] = c;
      angle[2 * robots] = s;
      angle[3 * robots] = tilt;
      angle[4 * robots] = std::exp(-10.0f * tilt);
      // The vector part across the velocity, once and again.
      const float a = y * v[2] - z * v[1], b = z * v[0] - x * v[2], d = x * v[1] - y * v[0];
      float* turned = at<float>(body, 3 * k);
      turned[0] = v[0] - 2.0f * w * a + 2.0f * (y * d - z * b);
      turned[1] = v[1] - 2.0f * w * b + 2.0f * (z * a - x * d);
      turned[2] = v[2] - 2.0f * w * d + 2.0f * (x * b - y * a);
      float* level = at<float>(planar, 2 * k);
      level[0] = v[0] * c + v[1] * s;
      level[1] = v[1] * c - v[0] * s;
    }
  });
}

// Of feet at positions [K, F, 3] with sole points [K, F, P, 3], velocities and contact forces [K, F, 3], on the tiles [K]
// of the maps: numbers [3, K, F], which are the terrain's height below the foot, the foot's above it and its horizontal
// speed; drop [K, F, P] of the terrain at the sole points below the lowest of them; contact [K, F], where the force is
// above `contact_force`; and below [K], the ground that the robot's height is measured from (`RobotState.ground_below`,
// with `on_an_edge`).
inline void feet(Address maps, int64_t rows, int64_t columns, Address tile, float scale, Address middle,
                 Address position, int64_t position_stride, Address sole, int64_t sole_stride, Address velocity,
                 int64_t velocity_stride, Address force, int64_t force_stride, float contact_force, float on_an_edge,
                 Address numbers, Address drop, Address contact, Address below, int64_t robots, int64_t feet,
                 int64_t points, int threads) {
  const Maps all{at<float>(maps), rows, columns};
  const float middle_x = at<float>(middle)[0], middle_y = at<float>(middle)[1];
  parallel_for(robots, kRobots, threads, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const float* map = all.of(at<int64_t>(tile)[k]);
      const auto height = [&](const float* p) {
        return all.look_up(map, p[0] * scale + middle_x, p[1] * scale + middle_y);
      };
      bool stands = false;
      float lowest_borne = 0.0f, lower = 0.0f, below_lower = 0.0f;
      for (int64_t f = 0; f < feet; ++f) {
        const float* p = at<float>(position, k * position_stride + 3 * f);
        const float* v = at<float>(velocity, k * velocity_stride + 3 * f);
        const float* push = at<float>(force, k * force_stride + 3 * f);
        const float ground = height(p);
        float* number = at<float>(numbers, k * feet + f);
        number[0] = ground;
        number[robots * feet] = p[2] - ground;
        number[2 * robots * feet] = std::sqrt(v[0] * v[0] + v[1] * v[1]);
        const bool loaded = push[0] * push[0] + push[1] * push[1] + push[2] * push[2] > contact_force * contact_force;
        at<bool>(contact)[k * feet + f] = loaded;
        const float borne = p[2] - ground > on_an_edge ? p[2] : ground;
        if (loaded && (!stands || borne < lowest_borne)) lowest_borne = borne;
        stands = stands || loaded;
        if (f == 0 || p[2] < lower) {
          lower = p[2];
          below_lower = ground;
        }
        const float* own = at<float>(sole, k * sole_stride + 3 * points * f);
        float lowest = own[2];
        for (int64_t i = 1; i < points; ++i) lowest = own[3 * i + 2] < lowest ? own[3 * i + 2] : lowest;
        float* drops = at<float>(drop, (k * feet + f) * points);
        for (int64_t i = 0; i < points; ++i) drops[i] = lowest - height(own + 3 * i);
      }
      at<float>(below)[k] = stands ? lowest_borne : below_lower;
    }
  });
}

}  // namespace p3::robot_state
