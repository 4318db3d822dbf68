"""Delayed messages: delay levels (ScheduleMessageService), any delay (TimerMessageStore), recall."""
